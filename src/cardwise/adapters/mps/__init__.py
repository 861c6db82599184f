"""NVIDIA's MPS on this node: the only room that runs nvidia-cuda-mps-control.

MPS lets clients of one card run at the same time, each within a limit of memory and of SMs. Two protocols: 3 (R615,
CUDA 13.4) gives every slice a *namespace* with limits of its own, chosen by the socket that is mounted into the
container; 2 (every driver) knows one ceiling per daemon, and a slice below it rests on variables in the container.

Refuses to believe a command: they answer nothing and exit 0 for a card that is not there, so that only what is read
back counts. Refuses NVIDIA's default directories: their container toolkit mounts ``/tmp/nvidia-mps`` into every
container, and CUDA looks there unasked. Refuses to hand on ``CUDA_*`` of its own environment: the daemon would take
them as defaults.

What binds: a namespace's memory and SMs (3); the ceiling (2); a static partition's SMs, while its name is kept. What
only asks: every variable, thus with 2 a slice's memory and SMs below the ceiling; and the priority with both. With 2
the container also sees the daemon's own socket: one that runs as the daemon's user may give it commands. Measured by
others on 615: one entry of the memory variable that names a card which the process does not see lifts *all* memory
limits of that process. What holds against a tenant's will is the driver's limit per cgroup, or MIG.

Source: MPS documentation 615: "Legacy MPS v2 Interface", "MPS v3 Interface", "MPS v3 Namespaces", "Common Tasks",
"Environment Variables".
"""
