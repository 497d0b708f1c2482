"""Kiro logins: token stores, refresh, device login, profiles and quota.

The gateway's backends and `dragoman auth` call it. It reads the logins of this machine, writes our own, and sends
requests to the sign-in services through a `Fetch`.
"""
