"""What others see of a host over HTTP: its pods, decisions, machine, events and metrics."""
