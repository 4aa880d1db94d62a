/* Counts the instructions of a program's first thread, one by one, for ci/instructions.sh.
 *
 *   steps PROGRAM ARGUMENT...
 *
 * Two breakpoints (int3) in the program mark the part that is counted. Prints the number of
 * instructions, and the number of locked instructions: those with the lock prefix, and xchg with
 * memory. If STEPS_LIST names a file, a line for each instruction is written to this file. A line
 * has the object that contains the instruction, the offset in it, the count, and 1 if it is locked.
 *
 * The other threads are stopped while the first one runs. When the program reads the time stamp
 * counter, it gets a value that grows by one with each counted instruction. So the counts do not
 * depend on what else runs. The kernel's instructions are not counted. Needs x86-64. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

enum { PLACES = 1 << 20, THREADS = 256 };

/* Bits of `kind`: the properties of an instruction at an address. */
enum { KNOWN = 1, LOCKED = 2, READS_TIME = 4, BREAKS = 8 };
static struct place {
    unsigned long address, count;
    int kind;
} places[PLACES];

static pid_t others[THREADS];
static int other_count;

static void die(const char *what)
{
    fprintf(stderr, "steps: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Determines the kind of an instruction. */
static int kind_of(pid_t pid, unsigned long address)
{
    unsigned char code[16] = {0};
    struct iovec here = {code, sizeof code}, there = {(void *)address, sizeof code};
    /* Reads up to the end of the page, if the next page is not mapped. */
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0) {
        here.iov_len = there.iov_len = 4096 - address % 4096;
        if (here.iov_len > sizeof code || process_vm_readv(pid, &here, 1, &there, 1, 0) < 0)
            return KNOWN;
    }
    int at = 0, lock = 0;
    for (; at < 5; at++) {
        unsigned char byte = code[at];
        if (byte == 0xf0)
            lock = 1;
        else if (byte != 0x66 && byte != 0x67 && byte != 0xf2 && byte != 0xf3 && byte != 0x64 &&
                 byte != 0x65 && (byte & 0xf0) != 0x40)
            break;
    }
    int exchanges = (code[at] == 0x86 || code[at] == 0x87) && code[at + 1] < 0xc0;
    int reads_time = code[at] == 0x0f &&
                     (code[at + 1] == 0x31 || (code[at + 1] == 0x01 && code[at + 2] == 0xf9));
    int breaks = code[at] == 0xcc;
    return KNOWN | (lock || exchanges ? LOCKED : 0) | (reads_time ? READS_TIME : 0) |
           (breaks ? BREAKS : 0);
}

static struct place *place_of(pid_t pid, unsigned long address)
{
    unsigned long at = address * 0x9e3779b97f4a7c15ul >> 44;
    while (places[at].kind && places[at].address != address)
        at = (at + 1) % PLACES;
    if (!places[at].kind)
        places[at] = (struct place){address, 0, kind_of(pid, address)};
    return &places[at];
}

static void go(int how, pid_t thread, int signal)
{
    if (ptrace(how, thread, 0, (void *)(long)signal) < 0 && errno != ESRCH)
        die("ptrace");
}

/* Runs all threads until the first one meets a breakpoint. */
static void run_to_breakpoint(pid_t pid)
{
    for (;;) {
        int status;
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0)
            die("waitpid");
        if (!WIFSTOPPED(status)) {
            if (thread == pid) {
                fprintf(stderr, "steps: the program has ended without a breakpoint\n");
                exit(1);
            }
            for (int at = 0; at < other_count; at++)
                if (others[at] == thread)
                    others[at] = others[--other_count];
            continue;
        }
        int event = status >> 16, signal = WSTOPSIG(status);
        if (thread != pid && event == PTRACE_EVENT_STOP && other_count < THREADS) {
            int known = 0;
            for (int at = 0; at < other_count; at++)
                known |= others[at] == thread;
            if (!known)
                others[other_count++] = thread;
        }
        if (thread == pid && !event && signal == SIGTRAP)
            return;
        go(PTRACE_CONT, thread, event ? 0 : signal);
    }
}

/* Does the thread sleep, or is it stopped because it has just begun? */
static int sleeps(pid_t thread)
{
    char name[64], line[512] = "";
    snprintf(name, sizeof name, "/proc/%d/stat", (int)thread);
    FILE *file = fopen(name, "r");
    if (!file)
        return 1;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = 0;
    const char *state = strrchr(line, ')');
    return !state || (state[2] != 'R' && state[2] != 'D');
}

/* Stops the other threads permanently. Each of them is stopped while it sleeps, when it holds no
 * lock. */
static void stop_others(void)
{
    for (int at = 0; at < other_count; at++) {
        int status;
        while (!sleeps(others[at]))
            usleep(100);
        if (ptrace(PTRACE_INTERRUPT, others[at], 0, 0) == 0)
            waitpid(others[at], &status, __WALL);
    }
}

static void list(pid_t pid, const char *path)
{
    char name[64], line[512];
    snprintf(name, sizeof name, "/proc/%d/maps", (int)pid);
    FILE *out = fopen(path, "w");
    if (!out)
        die(path);
    for (int at = 0; at < PLACES; at++) {
        FILE *maps = places[at].count ? fopen(name, "r") : NULL;
        while (maps && fgets(line, sizeof line, maps)) {
            unsigned long from, to, offset;
            char object[256] = "?";
            sscanf(line, "%lx-%lx %*s %lx %*s %*s %255s", &from, &to, &offset, object);
            if (places[at].address >= from && places[at].address < to) {
                fprintf(out, "%s %lx %lu %d\n", object, places[at].address - from + offset,
                        places[at].count, !!(places[at].kind & LOCKED));
                break;
            }
        }
        if (maps)
            fclose(maps);
    }
    fclose(out);
}

int main(int count, char **arguments)
{
    if (count < 2) {
        fprintf(stderr, "steps PROGRAM ARGUMENT...\n");
        return 2;
    }
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGSTOP);
        const char *library = getenv("STEPS_PRELOAD");
        if (library)
            setenv("LD_PRELOAD", library, 1);
        execv(arguments[1], arguments + 1);
        die(arguments[1]);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, WUNTRACED) < 0)
        die("fork");
    if (ptrace(PTRACE_SEIZE, pid, 0, (void *)(PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) < 0)
        die("ptrace is not allowed here");
    kill(pid, SIGCONT);
    run_to_breakpoint(pid);
    stop_others();

    /* Ends this program if the counted thread waits for a stopped one without end. */
    alarm(600);
    unsigned long all = 0, locked = 0, time = __rdtsc();
    for (;;) {
        struct user_regs_struct registers;
        if (ptrace(PTRACE_GETREGS, pid, 0, &registers) < 0)
            die("registers");
        struct place *place = place_of(pid, registers.rip);
        if (place->kind & BREAKS)
            break;
        go(PTRACE_SINGLESTEP, pid, 0);
        if (waitpid(pid, &status, __WALL) < 0 || !WIFSTOPPED(status))
            die("the program has ended");
        if (WSTOPSIG(status) != SIGTRAP) {
            fprintf(stderr, "steps: signal %d\n", WSTOPSIG(status));
            return 1;
        }
        all++;
        place->count++;
        locked += !!(place->kind & LOCKED);
        if (place->kind & READS_TIME) {
            if (ptrace(PTRACE_GETREGS, pid, 0, &registers) < 0)
                die("registers");
            unsigned long now = time + all;
            registers.rax = now & 0xffffffff;
            registers.rdx = now >> 32;
            if (ptrace(PTRACE_SETREGS, pid, 0, &registers) < 0)
                die("registers");
        }
    }
    printf("%lu %lu\n", all, locked);
    if (getenv("STEPS_LIST"))
        list(pid, getenv("STEPS_LIST"));
    kill(pid, SIGKILL);
    return 0;
}
