"""Everything about reaching an upstream: the HTTP client, and the credentials that requests are signed with."""
