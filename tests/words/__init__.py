"""Checks of prose: spelling, words that only this project understood, and long lines in docs."""
