"""The engine of one machine: tasks are programs here, each with a keeper of its own."""
