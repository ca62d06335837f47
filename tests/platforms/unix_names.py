"""Names of the standard library that only Unix has, of those that a program like ours would use."""

from __future__ import annotations

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "uvloop")
OF_OS = (
    *("O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "O_SYNC", "WNOHANG"),
    *("register_at_fork", "fork", "forkpty", "killpg", "setsid", "setpgid", "getpgid", "getpgrp"),
    *("getuid", "geteuid", "getgid", "getegid", "setuid", "chown", "fchown", "fchmod", "mkfifo"),
    *(
        "statvfs",
        "fstatvfs",
        "uname",
        "sched_getaffinity",
        "sched_yield",
        "getloadavg",
        "nice",
        "sysconf",
    ),
    *("fdatasync", "pread", "pwrite", "preadv", "pwritev", "readv", "writev", "lockf", "sync"),
    *("waitid", "wait3", "wait4", "openpty"),
    *("eventfd", "memfd_create", "pidfd_open", "sendfile", "posix_fallocate", "sysconf", "ctermid"),
)
OF_SELECT = ("poll",)
OF_SIGNAL = (
    *("SIGHUP", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD", "SIGCONT"),
    *("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGWINCH", "SIGBUS", "SIGSYS", "SIGTRAP", "SIGXCPU"),
    *("pthread_sigmask", "pthread_kill", "sigwait", "sigpending", "siginterrupt", "setitimer", "alarm"),
    *("pause", "SIG_BLOCK", "SIG_SETMASK", "ITIMER_REAL"),
)
