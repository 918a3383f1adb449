"""Run a command in a child process, so that its parent can report when the OOM killer ends it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from vit.cli.main import OUT_OF_MEMORY
from vit.out_of_memory import describe_exit, kills, prefer_for_oom_kill
from vit.training.loop.run_folder import ENGINE, SUPERVISED

_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, from linux/prctl.h
_FROM_TERMINAL = 128  # SI_KERNEL: sent by the terminal to its whole process group, so the child has it already


def watched(work: Callable[[], int]) -> int:
    """Run `work` in a child process, exit as it exits, and report if it was killed for lack of memory.

    Call it before any thread starts: it forks. Without Linux, or where another program monitors this one (torchrun, a
    run's supervisor or a cluster's job), `work` runs in this process.
    """
    if sys.platform != "linux" or {"RANK", SUPERVISED, ENGINE} & os.environ.keys():
        return work()
    before, parent = kills(), os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl took effect
            os._exit(1)
        return work()
    prefer_for_oom_kill(child)
    while (one := signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})).si_signo != signal.SIGCHLD or not _is_over(child):
        if one.si_signo != signal.SIGCHLD and one.si_code != _FROM_TERMINAL:
            os.kill(child, one.si_signo)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    if who := describe_exit(code, before):
        with suppress(OSError):
            print(f"{who}. {OUT_OF_MEMORY}", file=sys.stderr, flush=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(parent, -code)
    return 128 - code


def _is_over(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
