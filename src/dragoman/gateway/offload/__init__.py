"""Large requests are read, planned and rendered in a process of their own, so that others need not wait for them."""
