"""Recording of requests for the inspector: what the gateway keeps on disk, within bounds, without secrets.

`capture` collects what happens to one request on the event loop. `recorder` takes it when the request has ended;
`writer` masks (`masking`) and writes it in a thread, into the files of `segments`, and deletes old ones.
Nothing here is imported while `inspector.record` is "off".
"""
