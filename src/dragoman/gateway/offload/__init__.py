"""Large requests are read, planned and rendered in a process of their own, so that others need not wait for them.

Only the gateway calls it. `process` starts the worker and talks to it over a socket pair; `jobs` is pure.
"""
