"""What explains the decision on one pod, collected from a live cluster into one archive, without secrets."""
