"""The canonical model: dialect-free values that every dialect parses into and renders from.

`conversation` and `blocks` define requests and whole replies, `events` a streamed reply, and `assemble` converts events
to a reply and back. `filter` defines the protocol of filters, `capabilities` what a service accepts. `parts` reads
content parts and media whose forms several dialects share.

Pure: no I/O, and no dialect is named. The package imports `wire` and `errors` only; all packages above may import it.
"""
