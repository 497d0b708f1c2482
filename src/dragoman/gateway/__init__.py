"""The gateway: configuration, routes, and the one place where I/O meets translation."""
