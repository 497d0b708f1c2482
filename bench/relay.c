/* The floor: bytes from socket to socket, by epoll, and nothing else. Usage: relay PORT... prints one listening port
   for each of these ports of 127.0.0.1, then relays until it is ended. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 65536

static int peer_of[MOST];   /* of a connection: the other one; of a listener: minus the port behind it */
static char buffer[262144];
static int epoll;

static struct sockaddr_in local(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void join(int client, int port)
{
    struct sockaddr_in address = local(port);
    int one = 1, upstream = socket(AF_INET, SOCK_STREAM, 0);
    if (upstream < 0 || connect(upstream, (struct sockaddr *)&address, sizeof address)) {
        close(client);
        close(upstream);
        return;
    }
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(upstream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    peer_of[client] = upstream;
    peer_of[upstream] = client;
    watch(client);
    watch(upstream);
}

static int pass(int from, int to)
{
    ssize_t size = read(from, buffer, sizeof buffer), sent = 0;
    while (size > 0 && sent < size) {
        ssize_t wrote = write(to, buffer + sent, size - sent);
        if (wrote < 0 && errno != EINTR)
            return 0;
        sent += wrote > 0 ? wrote : 0;
    }
    return size > 0;
}

static void part(int fd)
{
    int other = peer_of[fd];
    peer_of[fd] = peer_of[other] = 0;
    close(fd);
    close(other);
}

int main(int count, char **ports)
{
    struct epoll_event ready[256];
    epoll = epoll_create1(0);
    for (int at = 1; at < count; at++) {
        struct sockaddr_in address = local(0);
        socklen_t size = sizeof address;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 2048))
            return 1;
        getsockname(fd, (struct sockaddr *)&address, &size);
        printf("%d\n", ntohs(address.sin_port));
        peer_of[fd] = -atoi(ports[at]);
        watch(fd);
    }
    fflush(stdout);
    for (;;) {
        int found = epoll_wait(epoll, ready, 256, -1);
        for (int at = 0; at < found; at++) {
            int fd = ready[at].data.fd, peer = peer_of[fd];
            if (peer < 0)
                join(accept(fd, NULL, NULL), -peer);
            else if (peer && !pass(fd, peer))
                part(fd);
        }
    }
}
