"""Load tests: many parallel streams through a gateway process; none is lost or mixed, and no resource leaks."""
