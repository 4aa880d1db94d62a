/* The pages of a ring are moved by mremap(2). The kernel then knows the context by its new address;
 * the drop-in refuses the new address. */
#include "common.h"

int main(void)
{
    int fd = temp_file(PAGE);
    static unsigned char buf[PAGE];
    struct iocb iocb;
    io_context_t ctx = setup(1);
    struct ring *ring = (struct ring *)ctx;
    size_t size = (sizeof *ring + ring->nr * sizeof ring->events[0] + PAGE - 1) / PAGE * PAGE;
    say("pages", "%zu", size / PAGE);
    void *place = pages(size);
    void *moved = mremap(ctx, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    yes("the pages move", moved == place);
    yes("with what is in them", ((struct ring *)moved)->magic == 0xa10a10a1);
    io_prep_pread(&iocb, fd, buf, PAGE, 0);
    request((io_context_t)moved, "a read through the new address", &iocb);
    answer("destroy the new address", io_destroy((io_context_t)moved));
    return 0;
}
