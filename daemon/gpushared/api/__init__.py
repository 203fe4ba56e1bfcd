"""The HTTP API: the listener, the routes by noun, the views and the metrics."""
