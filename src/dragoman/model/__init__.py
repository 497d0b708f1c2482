"""The canonical model: values that every dialect reads into and writes from. Pure: no I/O, no dialect by its name.

`conversation` and `blocks` are what is asked and answered, `events` an answer while it comes, `assemble` both at once.
`filter` is the shape of a filter, `capabilities` what a service takes. `parts` and `usage` read what all dialects write
alike. Everything above `wire` and `http` may import this; this imports `wire` and `errors` alone.
"""
