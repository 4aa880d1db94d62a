/* Enters a ring by an instruction of its own. Every register that the kernel keeps holds a value,
 * and so do the 128 bytes below the stack pointer. All values have to be the same afterwards. The
 * argument says whether the library must have patched the code ("jumped") or not ("kept"). */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

#if !defined(__x86_64__)
int main(void)
{
    printf("done\n");
    return 0;
}
#else
struct registers {
    unsigned long general[14]; /* rax rbx rdx rsi rdi rbp r8 to r15, without rcx, r11, rsp */
    unsigned long below[16];   /* below the stack pointer */
    unsigned long flags;
    unsigned char x87[16];
    unsigned mxcsr;
    unsigned pad[13];
    unsigned char vectors[16][64];
    unsigned long masks[8];
} __attribute__((aligned(64)));

extern unsigned char site[];
/* Loads `in`, enters the ring with the arguments in it, and stores the registers to `out`. Level
 * 0 means SSE, 1 AVX, 2 AVX-512. */
long enter_with(const struct registers *in, struct registers *out, long level);
__asm__(
    ".text\n.globl site\n.globl enter_with\nenter_with:\n.cfi_startproc\n"
    "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "push %rsi\npush %rdx\n"
    "sub $256, %rsp\n"
    "mov %rdi, %rax\n"
    /* Fills the 128 bytes below the stack pointer. */
    "mov $0, %ecx\n"
    "1: mov 112(%rax,%rcx,8), %r11\nmov %r11, -128(%rsp,%rcx,8)\n"
    "inc %ecx\ncmp $16, %ecx\njne 1b\n"
    /* Fills the vector registers. */
    "cmp $1, %rdx\njb 3f\nje 2f\n"
    "vmovdqu64 320(%rax), %zmm0\nvmovdqu64 384(%rax), %zmm1\nvmovdqu64 448(%rax), %zmm2\n"
    "vmovdqu64 832(%rax), %zmm8\nvmovdqu64 1280(%rax), %zmm15\nvmovdqu64 448(%rax), %zmm16\n"
    "vmovdqu64 832(%rax), %zmm31\nkmovq 1344(%rax), %k1\nkmovq 1352(%rax), %k7\njmp 4f\n"
    "2: vmovdqu 320(%rax), %ymm0\nvmovdqu 384(%rax), %ymm1\nvmovdqu 448(%rax), %ymm2\n"
    "vmovdqu 832(%rax), %ymm8\nvmovdqu 1280(%rax), %ymm15\njmp 4f\n"
    "3: movdqu 320(%rax), %xmm0\nmovdqu 384(%rax), %xmm1\nmovdqu 448(%rax), %xmm2\n"
    "movdqu 832(%rax), %xmm8\nmovdqu 1280(%rax), %xmm15\n"
    "4:\n"
    "fldt 248(%rax)\n"
    "ldmxcsr 264(%rax)\n"
    "pushq 240(%rax)\npopfq\n"
    /* pushq wrote the flags below the stack pointer, so this fills that word again. */
    "mov 232(%rax), %r11\nmov %r11, -8(%rsp)\n"
    "mov 8(%rax), %rbx\nmov 16(%rax), %rdx\nmov 24(%rax), %rsi\nmov 32(%rax), %rdi\n"
    "mov 40(%rax), %rbp\nmov 48(%rax), %r8\nmov 56(%rax), %r9\nmov 64(%rax), %r10\n"
    "mov 80(%rax), %r12\nmov 88(%rax), %r13\nmov 96(%rax), %r14\nmov 104(%rax), %r15\n"
    "site: mov $426, %eax\nsyscall\n"
    "mov 264(%rsp), %r11\n" /* out; no flags are changed until they are stored */
    "mov %rax, (%r11)\nmov %rbx, 8(%r11)\nmov %rdx, 16(%r11)\nmov %rsi, 24(%r11)\n"
    "mov %rdi, 32(%r11)\nmov %rbp, 40(%r11)\nmov %r8, 48(%r11)\nmov %r9, 56(%r11)\n"
    "mov %r10, 64(%r11)\nmov %r12, 80(%r11)\nmov %r13, 88(%r11)\nmov %r14, 96(%r11)\n"
    "mov %r15, 104(%r11)\n"
    "mov %r11, %rax\n"
    "mov -128(%rsp), %rcx\nmov %rcx, 112(%rax)\nmov -120(%rsp), %rcx\nmov %rcx, 120(%rax)\n"
    "mov -112(%rsp), %rcx\nmov %rcx, 128(%rax)\nmov -104(%rsp), %rcx\nmov %rcx, 136(%rax)\n"
    "mov -96(%rsp), %rcx\nmov %rcx, 144(%rax)\nmov -88(%rsp), %rcx\nmov %rcx, 152(%rax)\n"
    "mov -80(%rsp), %rcx\nmov %rcx, 160(%rax)\nmov -72(%rsp), %rcx\nmov %rcx, 168(%rax)\n"
    "mov -64(%rsp), %rcx\nmov %rcx, 176(%rax)\nmov -56(%rsp), %rcx\nmov %rcx, 184(%rax)\n"
    "mov -48(%rsp), %rcx\nmov %rcx, 192(%rax)\nmov -40(%rsp), %rcx\nmov %rcx, 200(%rax)\n"
    "mov -32(%rsp), %rcx\nmov %rcx, 208(%rax)\nmov -24(%rsp), %rcx\nmov %rcx, 216(%rax)\n"
    "mov -16(%rsp), %rcx\nmov %rcx, 224(%rax)\nmov -8(%rsp), %rcx\nmov %rcx, 232(%rax)\n"
    "pushfq\npopq 240(%rax)\ncld\n"
    "fstpt 248(%rax)\n"
    "stmxcsr 264(%rax)\n"
    "mov 256(%rsp), %rdx\n" /* level */
    "cmp $1, %rdx\njb 3f\nje 2f\n"
    "vmovdqu64 %zmm0, 320(%rax)\nvmovdqu64 %zmm1, 384(%rax)\nvmovdqu64 %zmm2, 448(%rax)\n"
    "vmovdqu64 %zmm8, 832(%rax)\nvmovdqu64 %zmm15, 1280(%rax)\nvmovdqu64 %zmm16, 512(%rax)\n"
    "vmovdqu64 %zmm31, 576(%rax)\nkmovq %k1, 1344(%rax)\nkmovq %k7, 1352(%rax)\n"
    "vzeroupper\njmp 4f\n"
    "2: vmovdqu %ymm0, 320(%rax)\nvmovdqu %ymm1, 384(%rax)\nvmovdqu %ymm2, 448(%rax)\n"
    "vmovdqu %ymm8, 832(%rax)\nvmovdqu %ymm15, 1280(%rax)\nvzeroupper\njmp 4f\n"
    "3: movdqu %xmm0, 320(%rax)\nmovdqu %xmm1, 384(%rax)\nmovdqu %xmm2, 448(%rax)\n"
    "movdqu %xmm8, 832(%rax)\nmovdqu %xmm15, 1280(%rax)\n"
    "4:\n"
    "mov (%rax), %rax\n"
    "add $256, %rsp\n"
    "pop %rdx\npop %rsi\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n.cfi_endproc\n");

/* The flags for carry, parity, adjust, zero, sign, direction and overflow. */
#define ARITHMETIC 0xcd5ul

static void check(int fd, int round, long level)
{
    static struct registers in, out;
    unsigned char *bytes = (unsigned char *)&in;
    for (size_t at = 0; at < sizeof in; at++)
        bytes[at] = (unsigned char)(at * 31 + (size_t)round * 7 + 1);
    unsigned long *general = in.general;
    general[4] = (unsigned long)fd; /* rdi */
    general[3] = 1;                 /* rsi: to submit */
    general[2] = 1;                 /* rdx: to wait for */
    general[8] = 1;                 /* r10: IORING_ENTER_GETEVENTS */
    general[6] = general[7] = 0;    /* r8, r9: no mask */
    in.flags = 0x202ul | ((unsigned long)round * 0x155 & ARITHMETIC);
    in.mxcsr = round & 1 ? 0x1f80 : 0x7f80;
    /* A number with the width of the x87 registers. */
    long double number = 1.0L / (round + 3);
    memset(in.x87, 0, sizeof in.x87);
    memcpy(in.x87, &number, 10);
    unsigned mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    MUST(enter_with(&in, &out, level) == 1);
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
    for (int at = 1; at < 14; at++)
        MUST(at == 9 || in.general[at] == out.general[at]);
    MUST(memcmp(in.below, out.below, sizeof in.below) == 0);
    MUST((in.flags & ARITHMETIC) == (out.flags & ARITHMETIC));
    MUST(memcmp(in.x87, out.x87, 10) == 0 && in.mxcsr == out.mxcsr);
    size_t size = (size_t)16 << level;
    static const int used[] = {0, 1, 2, 8, 15};
    for (size_t at = 0; at < 5; at++)
        MUST(memcmp(in.vectors[used[at]], out.vectors[used[at]], size) == 0);
    if (level < 2)
        return;
    MUST(memcmp(in.vectors[2], out.vectors[3], size) == 0); /* zmm16 */
    MUST(memcmp(in.vectors[8], out.vectors[4], size) == 0); /* zmm31 */
    MUST(in.masks[0] == out.masks[0] && in.masks[1] == out.masks[1]);
}

int main(int count, char **arguments)
{
    _Static_assert(__builtin_offsetof(struct registers, vectors) == 320, "as in the text");
    _Static_assert(__builtin_offsetof(struct registers, masks) == 1344, "as in the text");
    struct io_uring ring;
    MUST(io_uring_queue_init(8, &ring, 0) == 0);
    if (count > 1)
        MUST((site[0] == 0xe9) == !strcmp(arguments[1], "jumped"));
    long level = __builtin_cpu_supports("avx512bw") ? 2 : __builtin_cpu_supports("avx") ? 1 : 0;
    int file = scratch();
    char text[4096] = "written";
    for (int round = 0; round < 200; round++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        if (round % 3)
            io_uring_prep_write(sqe, file, text, sizeof text, 0);
        else
            io_uring_prep_read(sqe, file, text, sizeof text, 0);
        __atomic_store_n(ring.sq.ktail, *ring.sq.ktail + 1, __ATOMIC_RELEASE);
        ring.sq.array[ring.sq.sqe_head & *ring.sq.kring_mask] =
            ring.sq.sqe_head & *ring.sq.kring_mask;
        ring.sq.sqe_head++;
        check(ring.ring_fd, round, round % (level + 1));
        struct io_uring_cqe *cqe;
        MUST(io_uring_peek_cqe(&ring, &cqe) == 0);
        MUST(cqe->res == (int)sizeof text || (round == 0 && cqe->res == 0));
        io_uring_cqe_seen(&ring, cqe);
    }
    io_uring_queue_exit(&ring);
    printf("done\n");
    return 0;
}
#endif
