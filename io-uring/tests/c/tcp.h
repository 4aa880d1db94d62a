/* Connected sockets for tests. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* A connection of TCP over loopback, without a delay for small data. */
static void tcp(int ends[2])
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    MUST(bind(listener, (void *)&at, len) == 0 && listen(listener, 8) == 0);
    MUST(getsockname(listener, (void *)&at, &len) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(ends[0], (void *)&at, len) == 0);
    MUST((ends[1] = accept(listener, NULL, NULL)) >= 0);
    MUST(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    close(listener);
}
