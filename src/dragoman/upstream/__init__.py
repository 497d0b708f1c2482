"""Authentication to upstreams: signers, credentials, their stores and their renewal.

The gateway and the command line call it; it sends requests through `dragoman.http` and reads and writes credential
files.
"""
