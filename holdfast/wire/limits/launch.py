"""Bounds of starting and ending the processes of a cluster."""

from __future__ import annotations

from typing import Final

# From its start until a leader leads and every agent is connected: a slow machine imports for
# seconds, recovers a large folder, and may wait for the session of a leader that was killed.
UP_S: Final = 90.0
# How often a waiting command looks whether what it waits for is there.
UP_LOOK_S: Final = 0.05
# Workers that are ended by `down` have so long to reach a step boundary.
DOWN_NOTICE_S: Final = 10.0
# A process that was asked to end and has not by then is killed; for an agent, after the notice.
DOWN_S: Final = 10.0
# What `down` ends, one after the other. No machine has nearly as many parts of a cluster: beyond it
# somebody starts them as fast as they are ended.
DOWN_PARTS_MAX: Final = 1_000
# A process whose parent is gone puts its things away for so long; then it ends in any case.
TIED_END_S: Final = 10.0
# Workers of a tied agent end so soon after it, when it is killed and no other one comes.
TIED_AWAY_S: Final = 10.0
TIED_NOTICE_S: Final = 3.0
# A tied cluster's embedded server ends so soon after its last client.
TIED_LINGER_S: Final = 5.0
# A log of a process is put aside at its start when it is longer than this; one older is kept.
PROCESS_LOG_BYTES_MAX: Final = 16 * 1024 * 1024
# What is shown of the log of a process that ended early.
PROCESS_LOG_LINES_SHOWN: Final = 12
# Agents of one machine share the range of workers' ports in blocks of so many: each worker has a
# few, so a block serves two hundred workers, and 25 agents fit. A larger machine: `--ports`.
PORT_BLOCK: Final = 400
# An agent that has no place in the coordination plane looks so often whether it can have it.
PRESENCE_LOOK_S: Final = 0.2
# An agent that has its place looks so often whether somebody took it.
PRESENCE_CHECK_S: Final = 1.0
# The leader looks so often for blobs that nothing needs; a look lists the store.
SWEEP_EVERY_S: Final = 300.0
# What `nvidia-smi` may take to list the devices: a sleeping driver wakes up first.
NVIDIA_SMI_S: Final = 20.0
# Where a gateway listens unless it is told; and how many ports after it are tried when it is taken.
GATEWAY_PORT: Final = 8_080
GATEWAY_PORTS_TRIED: Final = 100
# A gateway that was killed is still a member until its session ends. Who ends the last one waits so
# long for that: otherwise the next `serve` takes it for one of another machine.
GATEWAY_GONE_S: Final = 30.0
# A process that had lived for so long is started again at once when it dies, and counts as well.
KEEP_STEADY_S: Final = 60.0
# One that dies again soon is started after a pause, which doubles each time up to the second: a
# machine with a broken part is busy with it for some percent of its time at most.
KEEP_PAUSE_S: Final = 0.25
KEEP_PAUSE_S_MAX: Final = 30.0
# After so many deaths in a row that were its own doing (about half a minute of tries) a process is
# given up: nothing that a person does not mend will help.
KEEP_FAULTS_MAX: Final = 8
# A supervisor that nothing wakes looks so often whether it has missed something: one `stat`.
KEEP_LOOK_S: Final = 10.0
# A process that is kept looks so often whether a supervisor is wanted, where none was until now.
KEEP_TURN_S: Final = 5.0
# After a supervisor was started, or could not be: when one looks again.
KEEP_AGAIN_S: Final = 0.5
# Letters of the last words of a process that a supervisor tells.
KEEP_WORDS_MAX: Final = 400
# Nobody leads, or nobody conducts, for so long, and nothing here is about to start one: a command
# that waits for him stops. A supervisor needs seconds, and so does a standby: the session of the
# one before has to end.
NOBODY_S: Final = 30.0
# A command that waits says for what after so long; not at once, since most is done by then.
WAIT_SAYS_S: Final = 1.5
