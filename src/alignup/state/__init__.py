"""What survives a crash: our own checkpoint and history, and the kubelet's state files, with a host made from them."""
