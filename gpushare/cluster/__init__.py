"""The cluster allocator: who may run where. Pure: events in, actions out; engines carry them out."""
