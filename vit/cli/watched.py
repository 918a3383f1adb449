"""A command's work in a child process, so that somebody is left to say that the system ended it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from vit.cli.main import OUT_OF_MEMORY
from vit.out_of_memory import die_first, ended, kills
from vit.training.run_folder import ENGINE, SUPERVISED

_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, from linux/prctl.h
_FROM_TERMINAL = 128  # SI_KERNEL, of a signal that all processes of the terminal get


def watched(work: Callable[[], int]) -> int:
    """Do some work in a child process, end as it ends, and say so where the system ended it for want of memory.

    It has to begin before there are threads. Elsewhere than on Linux, and where another program watches this one
    (torchrun, a run's supervisor or a cluster's job), there is no child.
    """
    if sys.platform != "linux" or {"RANK", SUPERVISED, ENGINE} & os.environ.keys():
        return work()
    before, parent = kills(), os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it ended meanwhile
            os._exit(1)
        return work()
    die_first(child)
    while (one := signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})).si_signo != signal.SIGCHLD or not _is_over(child):
        if one.si_signo != signal.SIGCHLD and one.si_code != _FROM_TERMINAL:
            os.kill(child, one.si_signo)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    if who := ended(code, before):
        with suppress(OSError):
            print(f"{who}. {OUT_OF_MEMORY}", file=sys.stderr, flush=True)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with suppress(OSError):  # there is nothing to reset of SIGKILL
        signal.signal(-code, signal.SIG_DFL)
    os.kill(parent, -code)
    return 128 - code


def _is_over(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
