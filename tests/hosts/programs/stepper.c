/* stepper FIRST STEP LAST PROGRAM: runs the program again and again; each time it goes to its first SIGUSR1 at full
 * speed and then instruction by instruction, until it is killed: the first time after FIRST instructions, then after
 * STEP more, and so on, up to its second SIGUSR1 or to LAST. Says how many runs it has killed and how many instructions
 * there were between the signals (0: not reached). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int resume(int request, pid_t child, int *status) {
    return ptrace(request, child, NULL, NULL) == 0 && waitpid(child, status, 0) == child && WIFSTOPPED(*status);
}

/* 1: killed after that many; 0: the second signal came before; -1: something else. */
static int step(long count, char **program, long *done) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(program[0], program);
        _exit(127);
    }
    waitpid(child, &status, 0); /* at exec */
    do
        if (!resume(PTRACE_CONT, child, &status))
            return -1;
    while (WSTOPSIG(status) != SIGUSR1);
    for (*done = 0; *done < count; ++*done) {
        if (!resume(PTRACE_SINGLESTEP, child, &status))
            return -1;
        if (WSTOPSIG(status) == SIGUSR1)
            break;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return *done == count;
}

int main(int words, char **word) {
    long done = 0, killed = 0, first = atol(word[1]), by = atol(word[2]), last = atol(word[3]);
    int more = words > 4;
    for (long count = first; more && count <= last; count += by, killed += more == 1) {
        more = step(count, word + 4, &done);
        if (more < 0)
            return 1;
    }
    printf("%ld %ld\n", killed, more ? 0 : done);
    return 0;
}
