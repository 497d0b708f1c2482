"""Who carries exchanges between clients' sockets and the gateway: our own HTTP/1.1 server."""
