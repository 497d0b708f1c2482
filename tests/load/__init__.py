"""Many streams at once through a gateway that runs as a process: none lost, none mixed, and nothing left behind."""
