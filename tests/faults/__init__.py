"""The fault suite: one table of faults (`rows`), one way to run them (`stage`), and ears of our own (`hearing`)."""
