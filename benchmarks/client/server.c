/* A fake LLM server that answers as fast or as punctually as one core can, and keeps the truth about it.

   cc -O2 -o server server.c -lm && ./server PORT

   One thread, one epoll set. POST /generate (native stream, text so far) and POST /v1/chat/completions
   (deltas) are answered with `tokens` events; every other request is answered with {}.
   GET /set?ttft_us=0&itl_us=0&tokens=64&coalesce=1   sets the answers and forgets the record
   GET /truth    the record since then. A request counts from its arrival in this host's kernel (SO_TIMESTAMPNS):
                 when this server is kept off its core, that is the server's delay and not the client's. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536
#define MAX_RECORD 2000000
#define MAX_TOKENS 4096

typedef struct { char *data; int size; } bytes;
typedef struct {
    int open, busy, chat, next, heap_at;
    char *in; int in_size, in_room;
    const char *out; int out_size;                 /* what the socket did not take yet */
    int64_t due, received, first, arrived;
} conn;

static conn conns[MAX_FD];
static int heap[MAX_FD], heap_size, epoll_fd, in_flight, max_in_flight, accepted;
static int64_t ttft_ns, itl_ns;
static int tokens = 64, coalesce = 1;
static bytes event_of[2][MAX_TOKENS], whole[2];
static double ttft_us[MAX_RECORD], itl_us[MAX_RECORD], arrival_s[MAX_RECORD];
static int n_done, n_arrived;
static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n";
static const char TAIL[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static int64_t now(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ------------------------------------------------------------------ answers */

static bytes join(bytes a, const char *b, int n) {
    a.data = realloc(a.data, a.size + n); memcpy(a.data + a.size, b, n); a.size += n; return a;
}

static bytes framed(const char *json) {
    char *line = malloc(strlen(json) + 64);
    int n = sprintf(line, "data: %s\n\n", json);
    char size[16]; bytes out = {0};
    out = join(out, size, sprintf(size, "%x\r\n", n));
    out = join(out, line, n); free(line);
    return join(out, "\r\n", 2);
}

static void build(void) {
    static char json[8 * MAX_TOKENS + 1024], text[8 * MAX_TOKENS];
    text[0] = 0;
    for (int chat = 0; chat < 2; chat++) { free(whole[chat].data); whole[chat] = (bytes){0}; whole[chat] = join(whole[chat], HEAD, sizeof HEAD - 1); }
    for (int i = 0; i < tokens; i++) {
        int last = i == tokens - 1;
        strcat(text, " word");
        sprintf(json, "{\"text\":\"%s\",\"output_ids\":[%d],\"meta_info\":{\"id\":\"0123456789abcdef\",\"finish_reason\":%s,"
                "\"prompt_tokens\":100,\"completion_tokens\":%d,\"cached_tokens\":64,\"cached_tokens_details\":"
                "{\"device\":64,\"host\":0,\"storage\":0},\"e2e_latency\":0.1}}", text, i,
                last ? "{\"type\":\"length\",\"length\":64}" : "null", i + 1);
        free(event_of[0][i].data); event_of[0][i] = framed(json);
        sprintf(json, "{\"id\":\"0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1764453047,\"model\":\"m\","
                "\"choices\":[{\"index\":0,\"delta\":{\"role\":null,\"content\":\" word\",\"reasoning_content\":null,"
                "\"tool_calls\":null},\"logprobs\":null,\"finish_reason\":%s}],\"usage\":%s}", last ? "\"length\"" : "null",
                last ? "{\"prompt_tokens\":100,\"total_tokens\":164,\"completion_tokens\":64}" : "null");
        free(event_of[1][i].data); event_of[1][i] = framed(json);
        for (int chat = 0; chat < 2; chat++) whole[chat] = join(whole[chat], event_of[chat][i].data, event_of[chat][i].size);
        if (i == 0) for (int chat = 0; chat < 2; chat++) {      /* the head goes out with the first token */
            bytes with_head = {0};
            with_head = join(with_head, HEAD, sizeof HEAD - 1);
            with_head = join(with_head, event_of[chat][0].data, event_of[chat][0].size);
            free(event_of[chat][0].data); event_of[chat][0] = with_head;
        }
        if (last) for (int chat = 0; chat < 2; chat++) event_of[chat][i] = join(event_of[chat][i], TAIL, sizeof TAIL - 1);
    }
    for (int chat = 0; chat < 2; chat++) whole[chat] = join(whole[chat], TAIL, sizeof TAIL - 1);
}

/* ------------------------------------------------------------------ timers: a binary heap by due instant */

static void place(int at, int fd) { heap[at] = fd; conns[fd].heap_at = at; }
static void sift_up(int at) {
    int fd = heap[at];
    while (at && conns[heap[(at - 1) / 2]].due > conns[fd].due) { place(at, heap[(at - 1) / 2]); at = (at - 1) / 2; }
    place(at, fd);
}
static void sift_down(int at) {
    int fd = heap[at];
    for (int child; (child = 2 * at + 1) < heap_size; at = child) {
        if (child + 1 < heap_size && conns[heap[child + 1]].due < conns[heap[child]].due) child++;
        if (conns[heap[child]].due >= conns[fd].due) break;
        place(at, heap[child]);
    }
    place(at, fd);
}
static void push(int fd) { place(heap_size++, fd); sift_up(heap_size - 1); }
static void drop(int fd) {
    int at = conns[fd].heap_at;
    if (at < 0) return;
    conns[fd].heap_at = -1;
    int moved = heap[--heap_size];
    if (moved == fd) return;
    place(at, moved); sift_up(at); sift_down(conns[moved].heap_at);
}

/* ------------------------------------------------------------------ connections */

static void shut(int fd) {
    conn *c = &conns[fd];
    drop(fd);
    if (c->busy) in_flight--;
    free(c->in); *c = (conn){.heap_at = -1};
    close(fd);
}

static void want(int fd, unsigned events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

static void put(int fd, const char *data, int size) {
    conn *c = &conns[fd];
    int n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) { shut(fd); return; }
    if (n < 0) n = 0;
    if (n < size) { c->out = data + n; c->out_size = size - n; want(fd, EPOLLIN | EPOLLOUT); }
}

static void advance(int fd) {
    conn *c = &conns[fd];
    int chat = c->chat, last;
    int64_t t = now();
    if (coalesce) { put(fd, whole[chat].data, whole[chat].size); last = 1; }
    else {
        last = c->next == tokens - 1;
        put(fd, event_of[chat][c->next].data, event_of[chat][c->next].size);
    }
    if (!c->open) return;
    if (!c->next) c->first = t;
    c->next++;
    if (last) {
        if (n_done < MAX_RECORD) {
            ttft_us[n_done] = (c->first - c->received) / 1e3;
            itl_us[n_done++] = tokens > 1 ? (t - c->first) / 1e3 / (tokens - 1) : 0;
        }
        c->busy = 0; in_flight--;
    } else { c->due += itl_ns; if (!c->out_size) push(fd); }
}

static int by_size(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }
static double at(double *sorted, int n, double q) { return n ? sorted[(int)(q * (n - 1) + 0.5)] : 0; }

static int truth(char *out) {
    double mean = 0, gap = 0, square = 0; int gaps = n_arrived - 1;
    for (int i = 0; i < n_done; i++) mean += itl_us[i] / n_done;
    for (int i = 1; i < n_arrived; i++) { double g = arrival_s[i] - arrival_s[i - 1]; gap += g; square += g * g; }
    double cv = gaps > 0 ? sqrt(fmax(0, square / gaps - (gap / gaps) * (gap / gaps))) / (gap / gaps) : 0;
    double *sorted = malloc(sizeof(double) * (n_done + 1));
    memcpy(sorted, ttft_us, sizeof(double) * n_done); qsort(sorted, n_done, sizeof(double), by_size);
    int n = sprintf(out, "{\"n\":%d,\"ttft_p50_us\":%.1f,\"ttft_p99_us\":%.1f,\"itl_mean_us\":%.2f,\"rate\":%.2f,\"cv\":%.4f,"
                    "\"first_s\":%.6f,\"last_s\":%.6f,\"accepted\":%d,\"max_in_flight\":%d", n_done, at(sorted, n_done, .5),
                    at(sorted, n_done, .99), mean, gaps > 0 ? gaps / gap : 0, cv, n_arrived ? arrival_s[0] : 0,
                    n_arrived ? arrival_s[n_arrived - 1] : 0, accepted, max_in_flight);
    memcpy(sorted, itl_us, sizeof(double) * n_done); qsort(sorted, n_done, sizeof(double), by_size);
    n += sprintf(out + n, ",\"itl_p50_us\":%.2f,\"itl_p99_us\":%.2f}", at(sorted, n_done, .5), at(sorted, n_done, .99));
    free(sorted);
    return n;
}

static long option(const char *head, const char *name, long otherwise) {
    const char *found = strstr(head, name);
    return found ? atol(found + strlen(name)) : otherwise;
}

static void control(int fd, const char *head) {
    static char body[2048], answer[4096];
    int n = sprintf(body, "{}");
    if (!strncmp(head, "GET /set?", 9)) {
        ttft_ns = 1000 * option(head, "ttft_us=", 0); itl_ns = 1000 * option(head, "itl_us=", 0);
        tokens = option(head, "tokens=", 64); coalesce = option(head, "coalesce=", 1);
        if (tokens < 1 || tokens > MAX_TOKENS) tokens = 64;
        n_done = n_arrived = accepted = max_in_flight = 0; build();
    } else if (!strncmp(head, "GET /truth", 10)) n = truth(body);
    else if (!strncmp(head, "GET /v1/models", 14)) n = sprintf(body, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\"}]}");
    int size = sprintf(answer, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n, body);
    put(fd, answer, size);
}

static void requests(int fd) {
    conn *c = &conns[fd];
    while (c->open && !c->busy && c->in_size) {
        c->in[c->in_size] = 0;
        char *end = strstr(c->in, "\r\n\r\n");
        if (!end) return;
        int head = end + 4 - c->in; long body = 0;
        for (char *line = strchr(c->in, '\n'); line && line < end; line = strchr(line + 1, '\n'))
            if (!strncasecmp(line + 1, "content-length:", 15)) body = atol(line + 16);
        if (c->in_size < head + body) return;
        int64_t t = c->arrived;
        *end = 0;
        int generate = !strncmp(c->in, "POST /generate", 14), chat = !strncmp(c->in, "POST /v1/chat/completions", 25);
        if (!generate && !chat) control(fd, c->in);
        if (!c->open) return;
        c->in_size -= head + body;
        memmove(c->in, c->in + head + body, c->in_size);
        if (!generate && !chat) continue;
        c->chat = chat; c->busy = 1; c->next = 0; c->received = t; c->due = t + ttft_ns;
        if (++in_flight > max_in_flight) max_in_flight = in_flight;
        if (n_arrived < MAX_RECORD) arrival_s[n_arrived++] = t / 1e9;
        if (ttft_ns) push(fd); else advance(fd);
    }
}

/* The kernel's mark of a read on the monotonic clock; now, when there is none. */
static int64_t marked(struct msghdr *message) {
    struct timespec real; int64_t t = now();
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t offset = real.tv_sec * 1000000000LL + real.tv_nsec - t;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec *mark = (struct timespec *)CMSG_DATA(c);
            int64_t found = mark->tv_sec * 1000000000LL + mark->tv_nsec - offset;
            return found < t ? found : t;
        }
    return t;
}

static void readable(int fd) {
    conn *c = &conns[fd];
    for (;;) {
        if (c->in_room - c->in_size < 65536) c->in = realloc(c->in, c->in_room += 131072);
        int room = c->in_room - c->in_size - 1;
        struct iovec into = {c->in + c->in_size, room};
        char control[64];
        struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        int n = recvmsg(fd, &message, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) { shut(fd); return; }
        if (n > 0) { c->in_size += n; c->arrived = marked(&message); }
        if (n < room) break;
    }
    requests(fd);
}

static void writable(int fd) {
    conn *c = &conns[fd];
    const char *out = c->out; int size = c->out_size;
    c->out_size = 0;
    put(fd, out, size);
    if (!c->open || c->out_size) return;
    want(fd, EPOLLIN);
    if (c->busy && c->heap_at < 0) push(fd);
    else if (!c->busy) requests(fd);
}

int main(int argc, char **argv) {
    int port = argc > 1 ? atoi(argv[1]) : 8100, one = 1;
    signal(SIGPIPE, SIG_IGN); prctl(PR_SET_TIMERSLACK, 1); prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct rlimit limit; getrlimit(RLIMIT_NOFILE, &limit); limit.rlim_cur = limit.rlim_max; setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < MAX_FD; i++) conns[i].heap_at = -1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)&where, sizeof where) || listen(listener, 4096)) { perror("bind"); return 1; }
    epoll_fd = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, found[512];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    build();
    for (;;) {
        int64_t t = now();
        for (int i = 0; i < 256 && heap_size && conns[heap[0]].due <= t; i++) { int fd = heap[0]; drop(fd); advance(fd); }
        struct timespec wait, *until = NULL;
        if (heap_size) {
            int64_t left = conns[heap[0]].due - now();
            if (left < 0) left = 0;
            wait = (struct timespec){left / 1000000000, left % 1000000000}; until = &wait;
        }
        int n = epoll_pwait2(epoll_fd, found, 512, until, NULL);
        for (int i = 0; i < n; i++) {
            int fd = found[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MAX_FD) { close(fd); continue; }
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                    conns[fd].open = 1; accepted++;
                    struct epoll_event add = {.events = EPOLLIN, .data.fd = fd};
                    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &add);
                }
                continue;
            }
            if (conns[fd].open && found[i].events & EPOLLOUT) writable(fd);
            if (conns[fd].open && found[i].events & ~EPOLLOUT) readable(fd);
        }
    }
}
