"""What proves to an upstream who asks: signers, credentials, where they are kept and how they are refreshed.

The gateway and the command line call it; it sends requests through `dragoman.http` and reads and writes credential
files.
"""
