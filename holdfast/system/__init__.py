"""What is local to a machine or a process: disk, processes, tasks with owners, clocks, logs,
certificates, channels. It knows what travels (`wire`), and nothing else of Holdfast."""
