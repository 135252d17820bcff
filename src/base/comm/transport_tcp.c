/* Messages by TCP, for processes that know only what torchrun's environment holds about one another: their rank,
 * how many there are, and where rank 0 listens.
 *
 * Meeting. Every rank listens on a port of its own and sends it to rank 0, which answers with the addresses of all.
 * Then each connects to those of lower rank, so that every pair has one connection:
 *
 *     rank r -> 0      hello { magic, ranks, r, port }
 *     0 -> all         addresses, as rank 0 saw them
 *     rank r -> s < r  hello
 *
 * A message is a head { magic, tag, bytes } and its bytes. Those that come before they are asked for are kept.
 * A connection that ends is a rank that has ended. */
#include "comm_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x316b6e72746f676eull /* "ngotrnk1" */
enum { NAP = 100 /* milliseconds */ };

/* ---- sockets --------------------------------------------------------------------------------- */
typedef struct hello {
    uint64_t magic;
    uint32_t ranks, rank, port, unused;
} hello;

/* Reads or writes all of it. @return false when the connection ends or time is up. */
static bool transfer_all(int fd, void *at, size_t n, bool writes, double deadline) {
    for (size_t done = 0; done < n;) {
        ssize_t k = writes ? send(fd, (char *)at + done, n - done, MSG_NOSIGNAL)
                           : recv(fd, (char *)at + done, n - done, 0);
        if (k > 0) {
            done += (size_t)k;
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EINTR) || time_now() > deadline) return false;
        struct pollfd p = { .fd = fd, .events = writes ? POLLOUT : POLLIN };
        poll(&p, 1, NAP);
    }
    return true;
}

static void prepare_socket(int fd) {
    int yes = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

static err tcp_listen(int port, int *out, int *got) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0), no = 0, yes = 1;
    bool v6 = fd >= 0;
    if (!v6) fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_storage a = { 0 };
    if (v6)
        *(struct sockaddr_in6 *)&a =
            (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    else
        *(struct sockaddr_in *)&a =
            (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    socklen_t n = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (fd >= 0) {
        if (v6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    if (fd < 0 || bind(fd, (void *)&a, n) != 0 || listen(fd, COMM_MAX_RANKS) != 0) {
        err e = err_hint(ERR("cannot listen on port %d: %s", port, strerror(errno)),
                         "choose another MASTER_PORT on all ranks");
        if (fd >= 0) close(fd);
        return e;
    }
    getsockname(fd, (void *)&a, &n);
    *got =
        ntohs(v6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
    *out = fd;
    return OK;
}

/* @return a connection, or -1 with errno; at most a second passes. */
static int connect_to(const struct sockaddr *a, socklen_t n) {
    int fd = socket(a->sa_family, SOCK_STREAM, 0), failed = 0;
    socklen_t size = sizeof failed;
    if (fd < 0) return -1;
    prepare_socket(fd);
    if (connect(fd, a, n) == 0) return fd;
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    if (errno == EINPROGRESS && poll(&p, 1, 1000) > 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) == 0 && !failed)
        return fd;
    int code = failed ? failed : errno == EINPROGRESS ? ETIMEDOUT : errno;
    close(fd);
    errno = code;
    return -1;
}

/* Tries until `deadline`: rank 0, or its name, may not be there yet. */
static err connect_by_name(const char *host, int port, double deadline, int *out) {
    char service[16], why[128] = "no answer";
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    for (;;) {
        struct addrinfo *list = NULL;
        int code = getaddrinfo(host, service, &hints, &list);
        if (code) snprintf(why, sizeof why, "%s", gai_strerror(code));
        for (struct addrinfo *a = list; a; a = a->ai_next) {
            *out = connect_to(a->ai_addr, a->ai_addrlen);
            if (*out >= 0) break;
            snprintf(why, sizeof why, "%s", strerror(errno));
        }
        bool there = list && *out >= 0;
        if (list) freeaddrinfo(list);
        if (there) return OK;
        if (time_now() > deadline) break;
        poll(NULL, 0, NAP);
    }
    return err_hint(ERR("rank 0 cannot be reached at %s port %d: %s", host, port, why),
                    "is it running? MASTER_ADDR must be a name of its host that others know, and "
                    "MASTER_PORT open; comm.timeout_seconds sets how long to try");
}

/* Waits for a connection of a rank of this job; others are turned away. */
static err accept_rank(int listener, int ranks, double deadline, int *fd, hello *h) {
    for (;;) {
        struct pollfd p = { .fd = listener, .events = POLLIN };
        if (time_now() > deadline) return ERR("not all of %d ranks have come", ranks);
        if (poll(&p, 1, NAP) <= 0) continue;
        *fd = accept(listener, NULL, NULL);
        if (*fd < 0) continue;
        prepare_socket(*fd);
        double soon = MIN(deadline, time_now() + 5);
        if (transfer_all(*fd, h, sizeof *h, false, soon) && h->magic == MAGIC &&
            h->ranks == (uint32_t)ranks && h->rank < h->ranks)
            return OK;
        close(*fd);
    }
}

/* ---- state --------------------------------------------------------------------------------------- */
typedef struct head {
    uint64_t magic, bytes;
    uint32_t tag, unused;
} head;

typedef struct message { /* to send, wanted, or kept */
    struct message *next;
    head h;
    char *at;
    size_t done; /* bytes of it, the head of one that is sent included */
    bool ended, mismatch;
    bool kept; /* owns `at` */
} message;

typedef struct tcp_peer {
    int fd;
    bool lost;
    message *sends, *wanted, *kept; /* each in order */
    message *now;                   /* what is being received */
    head h;
    size_t h_done;
} tcp_peer;

typedef struct tcp {
    tcp_peer *peers; /* [ranks] */
    struct pollfd *polls;
} tcp;

static void append_message(message **list, message *m) {
    while (*list) list = &(*list)->next;
    m->next = NULL;
    *list = m;
}
static message *remove_tag(message **list, uint32_t tag) {
    while (*list && (*list)->h.tag != tag) list = &(*list)->next;
    message *m = *list;
    if (m) *list = m->next;
    return m;
}
static message *message_new(int tag, const void *at, size_t bytes) {
    message *m = mem_alloc(sizeof *m);
    m->h = (head){ .magic = MAGIC, .bytes = bytes, .tag = (uint32_t)tag };
    m->at = (char *)at;
    return m;
}

/* ---- progress ------------------------------------------------------------------------------------- */
static void write_peer(tcp_peer *p) {
    while (p->sends) {
        message *m = p->sends;
        size_t head_left = m->done < sizeof m->h ? sizeof m->h - m->done : 0;
        const char *from = head_left ? (char *)&m->h + m->done : m->at + (m->done - sizeof m->h);
        size_t n = head_left ? head_left : m->h.bytes - (m->done - sizeof m->h);
        ssize_t k = n ? send(p->fd, from, n, MSG_NOSIGNAL | (head_left ? MSG_MORE : 0)) : 0;
        if (n && k <= 0) {
            p->lost |= k < 0 && errno != EAGAIN && errno != EINTR;
            return;
        }
        m->done += (size_t)k;
        if (m->done < sizeof m->h + m->h.bytes) continue;
        m->ended = true;
        p->sends = m->next;
    }
}

/* A head has come: where its bytes go. */
static void begin_message(tcp_peer *p) {
    p->lost |= p->h.magic != MAGIC || p->h.bytes > TRANSPORT_MAX_BYTES;
    if (p->lost) return;
    message *m = remove_tag(&p->wanted, p->h.tag);
    if (m && m->h.bytes != p->h.bytes) {
        m->mismatch = m->ended = true;
        m = NULL;
    }
    if (!m) {
        m = message_new((int)p->h.tag, mem_alloc(p->h.bytes), p->h.bytes);
        m->kept = true;
    }
    p->now = m;
}

static void read_peer(tcp_peer *p) {
    while (!p->lost) {
        char *to = p->now ? p->now->at + p->now->done : (char *)&p->h + p->h_done;
        size_t n = p->now ? p->now->h.bytes - p->now->done : sizeof p->h - p->h_done;
        ssize_t k = n ? recv(p->fd, to, n, 0) : 0;
        if (n && k <= 0) {
            p->lost = k == 0 || (errno != EAGAIN && errno != EINTR);
            return;
        }
        if (!p->now) {
            p->h_done += (size_t)k;
            if (p->h_done == sizeof p->h) begin_message(p);
            continue;
        }
        p->now->done += (size_t)k;
        if (p->now->done < p->now->h.bytes) continue;
        p->now->ended = true;
        if (p->now->kept) append_message(&p->kept, p->now);
        p->now = NULL;
        p->h_done = 0;
    }
}

static void progress_tcp(transport *w) {
    tcp *t = w->state;
    for (int r = 0; r < w->ranks; r++) {
        tcp_peer *p = &t->peers[r];
        t->polls[r] = (struct pollfd){ .fd = p->lost ? -1 : p->fd,
                                       .events = (short)(POLLIN | (p->sends ? POLLOUT : 0)) };
    }
    if (poll(t->polls, (nfds_t)w->ranks, 0) <= 0) return;
    for (int r = 0; r < w->ranks; r++) {
        if (t->polls[r].fd < 0) continue;
        if (t->polls[r].revents & (POLLIN | POLLHUP | POLLERR)) read_peer(&t->peers[r]);
        if (t->polls[r].revents & POLLOUT) write_peer(&t->peers[r]);
    }
}

/* ---- the transport --------------------------------------------------------------------------------- */
static err tcp_send(transport *w, int to, int tag, const void *from, transport_request *r) {
    tcp_peer *p = &((tcp *)w->state)->peers[to];
    message *m = message_new(tag, from, r->bytes);
    append_message(&p->sends, m);
    write_peer(p);
    r->handle = (uint64_t)(uintptr_t)m;
    return OK;
}

static err tcp_recv(transport *w, int from, int tag, void *to, transport_request *r) {
    tcp_peer *p = &((tcp *)w->state)->peers[from];
    message *m = remove_tag(&p->kept, (uint32_t)tag);
    if (!m) {
        m = message_new(tag, to, r->bytes);
        /* One of this tag that has begun to come was kept: it is the first. */
        if (p->now && p->now->kept && p->now->h.tag == (uint32_t)tag &&
            p->now->h.bytes == r->bytes) {
            memcpy(to, p->now->at, p->now->done);
            m->done = p->now->done;
            free(p->now->at);
            free(p->now);
            p->now = m;
        } else
            append_message(&p->wanted, m);
    } else {
        m->mismatch = m->h.bytes != r->bytes;
        if (!m->mismatch) memcpy(to, m->at, r->bytes);
        free(m->at);
    }
    r->handle = (uint64_t)(uintptr_t)m;
    return OK;
}

static err tcp_lost(int rank) {
    return err_hint(ERR("rank %d has ended: its connection is closed", rank),
                    "its own output has the cause; if it was killed, memory may have run out");
}

static err tcp_test(transport *w, transport_request *r, bool *done) {
    message *m = (message *)(uintptr_t)r->handle;
    if (!m->ended) progress_tcp(w);
    *done = m->ended;
    if (!m->ended) return ((tcp *)w->state)->peers[r->peer].lost ? tcp_lost(r->peer) : OK;
    bool mismatch = m->mismatch;
    free(m);
    if (!mismatch) return OK;
    return ERR("rank %d sent another number of bytes than the %zu that rank %d expects", r->peer,
               r->bytes, w->rank);
}

static err tcp_watch(transport *w) {
    tcp *t = w->state;
    progress_tcp(w);
    for (int r = 0; r < w->ranks; r++)
        if (t->peers[r].lost) return tcp_lost(r);
    return OK;
}

static void tcp_free(transport *w) {
    tcp *t = w->state;
    for (int r = 0; r < w->ranks; r++) {
        tcp_peer *p = &t->peers[r];
        for (message *m = p->kept, *next; m; m = next) {
            next = m->next;
            free(m->at);
            free(m);
        }
        if (p->fd >= 0) close(p->fd);
    }
    free(t->peers);
    free(t->polls);
    free(t);
    free(w);
}

/* None closes before all have come here. */
static void tcp_close(transport *w) {
    char one = 1, *all = mem_alloc((size_t)w->ranks);
    enum { LONG = 60 };
    err_free(transport_gather(w, LONG, &one, all, 1));
    free(all);
    tcp_free(w);
}

/* ---- meeting ----------------------------------------------------------------------------------------- */
typedef struct rank_address { /* where a rank listens, as rank 0 sees it */
    struct sockaddr_in6 at;   /* large enough for both families */
} rank_address;

static void set_port(rank_address *a, uint32_t port) {
    a->at.sin6_port = htons((uint16_t)port); /* at the same offset in sockaddr_in */
}

static bool is_loopback_rank(const rank_address *a) {
    if (a->at.sin6_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)&a->at)->sin_addr.s_addr) >> 24 == 127;
    const uint8_t *b = a->at.sin6_addr.s6_addr;
    return IN6_IS_ADDR_LOOPBACK(&a->at.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&a->at.sin6_addr) && b[12] == 127);
}

static err meet_as_first(transport *w, int listener, double deadline, rank_address *all) {
    tcp *t = w->state;
    for (int come = 1; come < w->ranks; come++) {
        hello h;
        int fd;
        socklen_t n = sizeof all->at;
        err e = accept_rank(listener, w->ranks, deadline, &fd, &h);
        if (e) {
            str missing = { 0 };
            for (int r = 1; r < w->ranks; r++)
                if (t->peers[r].fd < 0) str_add(&missing, " %d", r);
            err named = ERR("rank 0 has waited for%s to start", missing.text);
            str_free(&missing);
            err_free(e);
            return named;
        }
        if (h.rank == 0 || t->peers[h.rank].fd >= 0) {
            close(fd);
            return err_hint(ERR("two processes are rank %u", h.rank), "give each another RANK");
        }
        t->peers[h.rank].fd = fd;
        getpeername(fd, (void *)&all[h.rank].at, &n);
        set_port(&all[h.rank], h.port);
    }
    for (int r = 1; r < w->ranks; r++)
        if (!transfer_all(t->peers[r].fd, all, (size_t)w->ranks * sizeof *all, true, deadline))
            return tcp_lost(r);
    return OK;
}

/* Ranks on rank 0's host may have come to it from an address that others do not know. */
static void replace_loopback(rank_address *a, int first) {
    if (!is_loopback_rank(a)) return;
    in_port_t port = a->at.sin6_port;
    socklen_t n = sizeof a->at;
    getpeername(first, (void *)&a->at, &n);
    a->at.sin6_port = port;
}

static err meet_others(transport *w, int listener, int port, int first, double deadline,
                       rank_address *all) {
    tcp *t = w->state;
    hello me = { MAGIC, (uint32_t)w->ranks, (uint32_t)w->rank, (uint32_t)port, 0 }, h;
    t->peers[0].fd = first;
    if (!transfer_all(first, &me, sizeof me, true, deadline) ||
        !transfer_all(first, all, (size_t)w->ranks * sizeof *all, false, deadline))
        return err_hint(ERR("rank 0 turned rank %d away", w->rank),
                        "is WORLD_SIZE the same on all ranks, and RANK different?");
    for (int r = 1; r < w->rank; r++) {
        replace_loopback(&all[r], first);
        int fd = connect_to((void *)&all[r].at, all[r].at.sin6_family == AF_INET
                                                    ? sizeof(struct sockaddr_in)
                                                    : sizeof all[r].at);
        if (fd < 0 || !transfer_all(fd, &me, sizeof me, true, deadline))
            return ERR("rank %d cannot reach rank %d: %s", w->rank, r, strerror(errno));
        t->peers[r].fd = fd;
    }
    for (int r = w->rank + 1; r < w->ranks; r++) {
        int fd;
        TRY(accept_rank(listener, w->ranks, deadline, &fd, &h));
        if (h.rank <= (uint32_t)w->rank || t->peers[h.rank].fd >= 0)
            return ERR("two processes are rank %u", h.rank);
        t->peers[h.rank].fd = fd;
    }
    return OK;
}

static err meet_all(transport *w, const char *host, int port, double deadline, rank_address *all) {
    int listener = -1, own = 0, first = -1;
    enum { RETRIES = 50 }; /* an earlier job on this port may just be ending */
    err e = tcp_listen(w->rank ? 0 : port, &listener, &own);
    for (int i = 0; e && i < RETRIES && time_now() < deadline; i++) {
        err_free(e);
        poll(NULL, 0, NAP);
        e = tcp_listen(w->rank ? 0 : port, &listener, &own);
    }
    TRY(e);
    e = w->rank ? connect_by_name(host, port, deadline, &first) : OK;
    if (!e)
        e = w->rank ? meet_others(w, listener, own, first, deadline, all)
                    : meet_as_first(w, listener, deadline, all);
    close(listener);
    return e;
}

err transport_tcp_open(int rank, int ranks, const char *host, int port, double timeout,
                       transport **out) {
    transport *w = mem_alloc(sizeof *w);
    tcp *t = mem_alloc(sizeof *t);
    t->peers = mem_alloc((size_t)ranks * sizeof *t->peers);
    t->polls = mem_alloc((size_t)ranks * sizeof *t->polls);
    for (int r = 0; r < ranks; r++) t->peers[r].fd = -1;
    *w = (transport){ .name = "TCP",
                      .rank = rank,
                      .ranks = ranks,
                      .send = tcp_send,
                      .recv = tcp_recv,
                      .test = tcp_test,
                      .watch = tcp_watch,
                      .close = tcp_close,
                      .state = t };
    rank_address *all = mem_alloc((size_t)ranks * sizeof *all);
    err e = meet_all(w, host, port, time_now() + timeout, all);
    free(all);
    if (e)
        tcp_free(w);
    else
        *out = w;
    return e;
}
