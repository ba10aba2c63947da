"""A Slurm of several simulated nodes on this machine, for tests of sweeps on a cluster."""
