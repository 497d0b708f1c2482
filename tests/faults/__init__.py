"""The fault suite: a catalogue of faults, a runner, and HTTP clients and parsers without the code of the package."""
