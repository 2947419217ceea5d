"""What survives a crash: our checkpoint and history, and the kubelet's state files."""
