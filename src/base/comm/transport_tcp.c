/* Messages by TCP, for processes that know only what torchrun's environment holds about one another: their rank,
 * how many there are, and where rank 0 listens. tcp_meet.c connects every pair of them.
 *
 * A message is a head { magic, tag, bytes } and its bytes. Messages that arrive before they are
 * asked for are kept.
 * A connection that ends is a rank that has ended. */
#include "comm_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x316b6e72746f676eull /* "ngotrnk1" */

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

/* A head has been received: finds where its bytes are stored. */
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

err tcp_rank_lost(int rank) {
    return err_hint(ERR("rank %d has ended: its connection is closed", rank),
                    "its own output has the cause; if it was killed, memory may have run out");
}

static err tcp_test(transport *w, transport_request *r, bool *done) {
    message *m = (message *)(uintptr_t)r->handle;
    if (!m->ended) progress_tcp(w);
    *done = m->ended;
    if (!m->ended) return ((tcp *)w->state)->peers[r->peer].lost ? tcp_rank_lost(r->peer) : OK;
    bool mismatch = m->mismatch;
    free(m);
    if (!mismatch) return OK;
    return ERR("rank %d did not send the %zu bytes that rank %d expects", r->peer, r->bytes,
               w->rank);
}

static err tcp_watch(transport *w) {
    tcp *t = w->state;
    progress_tcp(w);
    for (int r = 0; r < w->ranks; r++)
        if (t->peers[r].lost) return tcp_rank_lost(r);
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

/* No rank closes before all have arrived here. */
static void tcp_close(transport *w) {
    char one = 1, *all = mem_alloc((size_t)w->ranks);
    enum { LONG = 60 };
    err_free(transport_gather(w, LONG, &one, all, 1));
    free(all);
    tcp_free(w);
}

/* ---- opening --------------------------------------------------------------------------------------- */
err transport_tcp_open(int rank, int ranks, const char *host, int port, double timeout,
                       transport **out) {
    transport *w = mem_alloc(sizeof *w);
    tcp *t = mem_alloc(sizeof *t);
    t->peers = mem_alloc((size_t)ranks * sizeof *t->peers);
    t->polls = mem_alloc((size_t)ranks * sizeof *t->polls);
    *w = (transport){ .name = "TCP",
                      .rank = rank,
                      .ranks = ranks,
                      .send = tcp_send,
                      .recv = tcp_recv,
                      .test = tcp_test,
                      .watch = tcp_watch,
                      .close = tcp_close,
                      .state = t };
    int *fds = mem_alloc((size_t)ranks * sizeof *fds);
    err e = tcp_meet(rank, ranks, host, port, timeout, fds);
    for (int r = 0; r < ranks; r++) t->peers[r].fd = fds[r];
    free(fds);
    if (e)
        tcp_free(w);
    else
        *out = w;
    return e;
}
