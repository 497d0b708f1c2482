"""Filters that only this dialect needs. A filter's `before` says which shared one must find its work done.

`codec.py` names them in the order of their work. They stand by what they change: the request as a whole (`request`),
tools (`tools`, and their `schemas`), turns and results (`turns`), thinking (`thinking`), and calls that the model wrote
as text (`leaks`).
"""
