/* The limit: a bare C client, one epoll set, bytes counted and thrown away. Closed loop.

   cc -O2 -o limit limit.c && ./limit PORT CONNECTIONS REQUESTS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

static int64_t now(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static int by_size(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

static int64_t sent_at[65536], first_at[65536];
static char tail[65536][5];

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int port = atoi(argv[1]), connections = atoi(argv[2]), wanted = atoi(argv[3]), started = 0, done = 0, one = 1;
    static char request[512], buffer[262144];
    const char *body = "{\"input_ids\":[1,2,3,4,5,6,7,8],\"sampling_params\":{\"max_new_tokens\":64},\"stream\":true}";
    int size = sprintf(request, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    double *ttft = malloc(sizeof(double) * wanted);
    int ep = epoll_create1(0);
    struct epoll_event found[512];
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rusage use0, use; int64_t t0 = now();
    getrusage(RUSAGE_SELF, &use0);
    for (int i = 0; i < connections && started < wanted; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&where, sizeof where)) { perror("connect"); return 1; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        sent_at[fd] = now(); started++; send(fd, request, size, 0);
    }
    while (done < wanted) {
        int n = epoll_wait(ep, found, 512, -1);
        for (int i = 0; i < n; i++) {
            int fd = found[i].data.fd, got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (got <= 0) { fprintf(stderr, "closed\n"); return 1; }
            if (!first_at[fd]) first_at[fd] = now();
            if (got >= 5) memcpy(tail[fd], buffer + got - 5, 5);
            else { memmove(tail[fd], tail[fd] + got, 5 - got); memcpy(tail[fd] + 5 - got, buffer, got); }
            if (memcmp(tail[fd], "0\r\n\r\n", 5)) continue;
            ttft[done++] = (first_at[fd] - sent_at[fd]) / 1e6;
            first_at[fd] = 0; memset(tail[fd], 0, 5);
            if (started < wanted) { started++; sent_at[fd] = now(); send(fd, request, size, 0); }
        }
    }
    getrusage(RUSAGE_SELF, &use);
    double cpu = (use.ru_utime.tv_sec - use0.ru_utime.tv_sec) * 1e6 + use.ru_utime.tv_usec - use0.ru_utime.tv_usec
               + (use.ru_stime.tv_sec - use0.ru_stime.tv_sec) * 1e6 + use.ru_stime.tv_usec - use0.ru_stime.tv_usec;
    qsort(ttft, done, sizeof(double), by_size);
    printf("{\"n\":%d,\"seconds\":%.4f,\"client_cpu_us\":%.2f,\"ttft_p50_ms\":%.4f,\"ttft_p99_ms\":%.4f}\n", done,
           (now() - t0) / 1e9, cpu / done, ttft[(int)(.5 * (done - 1))], ttft[(int)(.99 * (done - 1))]);
}
