"""Filters that only Kiro needs. A filter's `before` names the shared filter that must run after it. Pure.

`codec.py` lists them in the order in which they run. There is one module for each part that they change: the request as
a whole (`request`), tools (`tools`, and their `schemas`), turns and tool results (`turns`), thinking (`thinking`), and
calls that the model wrote as text (`raw_calls`).
"""
