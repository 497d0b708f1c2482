"""What several dialects need: one place for it, so that dialects never import or copy one another.

Everything here is pure and takes what differs between dialects as arguments. Dialects may import any module of this
package; the package imports no dialect (import contracts in pyproject.toml).
"""
