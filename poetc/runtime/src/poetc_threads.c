/* The pool of threads of poetc_threads.h: nothing at all without POETC_THREADS. */
#ifdef POETC_THREADS
#define _POSIX_C_SOURCE 200809L
#endif
#include "poetc_threads.h"

#ifdef POETC_THREADS

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#if POETC_THREADS < 1 || POETC_THREADS > 64
#error "POETC_THREADS: 1 to 64 threads"
#endif

#define STACK_BYTES (256u * 1024u) /* of a worker: kernels take a few KiB */
#define SPINS 4000                 /* about 50 microseconds before a worker sleeps, so that the next kernel finds it awake */
#define WORKERS (POETC_THREADS > 1 ? POETC_THREADS - 1 : 1)

static pthread_mutex_t pool = PTHREAD_MUTEX_INITIALIZER;   /* who has it runs a kernel */
static pthread_mutex_t sleep_ = PTHREAD_MUTEX_INITIALIZER; /* of the fields that follow, while workers sleep */
static pthread_cond_t awake = PTHREAD_COND_INITIALIZER;
static int sleeping, stopping;

/* The fields that workers wait for and then read lie together; those that the caller waits for lie apart. */
static struct {
    unsigned generation; /* a change starts the workers */
    poetc_kernel kernel;
    poetc_call call;
} job __attribute__((aligned(128)));
static int pending __attribute__((aligned(128)));

/* Each on a line of a cache. */
static float buffers[POETC_THREADS][(POETC_THREADS_FLOATS + 15) / 16 * 16] __attribute__((aligned(64)));
static int results[WORKERS];
static pthread_t workers[WORKERS];
static int count; /* of workers that run */
static int started;

static inline void pause_(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__ARM_ARCH) && __ARM_ARCH >= 7)
    __asm__ volatile("yield");
#endif
}

static unsigned wait_for_job(unsigned seen)
{
    unsigned now;
    int i;

    for (i = 0; i < SPINS; i++) {
        now = __atomic_load_n(&job.generation, __ATOMIC_ACQUIRE);
        if (now != seen)
            return now;
        pause_();
    }
    pthread_mutex_lock(&sleep_);
    __atomic_add_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
    while ((now = __atomic_load_n(&job.generation, __ATOMIC_SEQ_CST)) == seen)
        pthread_cond_wait(&awake, &sleep_);
    __atomic_sub_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&sleep_);
    return now;
}

static void start_job(void)
{
    __atomic_store_n(&pending, count, __ATOMIC_RELAXED);
    __atomic_add_fetch(&job.generation, 1u, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleeping, __ATOMIC_SEQ_CST) > 0) {
        pthread_mutex_lock(&sleep_);
        pthread_cond_broadcast(&awake);
        pthread_mutex_unlock(&sleep_);
    }
}

static int run_share(int part, float *workspace)
{
    poetc_call call = job.call;

    call.share.part = part;
    call.share.parts = count + 1;
    call.workspace = workspace;
    return job.kernel(&call);
}

static void *work(void *argument)
{
    const int index = (int)(intptr_t)argument;
    unsigned seen = 0;

    for (;;) {
        seen = wait_for_job(seen);
        if (stopping)
            return NULL;
        results[index] = run_share(index + 1, buffers[index + 1]);
        __atomic_sub_fetch(&pending, 1, __ATOMIC_RELEASE);
    }
}

/* Threads do not survive a fork: the child begins anew. */
static void forget(void)
{
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

    pool = mutex;
    sleep_ = mutex;
    awake = condition;
    job.generation = 0;
    sleeping = pending = stopping = count = started = 0;
}

static int wanted(void)
{
    const char *text = getenv("POETC_THREADS");
    const long number = text != NULL ? strtol(text, NULL, 10) : POETC_THREADS;

    return number < 1 ? 1 : number < POETC_THREADS ? (int)number : POETC_THREADS;
}

/* As many as there are to be had: with fewer, shares are larger. Those that run wait for the first job, whose count is
 * final. */
static void start(void)
{
    static int prepared;
    const int most = wanted() - 1;
    pthread_attr_t attributes;

    started = 1;
    if (most == 0 || pthread_attr_init(&attributes))
        return;
    if (!prepared)
        pthread_atfork(NULL, NULL, forget);
    prepared = 1;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    while (count < most && pthread_create(&workers[count], &attributes, work, (void *)(intptr_t)count) == 0)
        count++;
    pthread_attr_destroy(&attributes);
}

/* At the end of the program, and before a shared library with this is unloaded. */
__attribute__((destructor)) static void stop(void)
{
    int i;

    if (count == 0 || pthread_mutex_trylock(&pool))
        return;
    stopping = 1;
    start_job();
    for (i = 0; i < count; i++)
        pthread_join(workers[i], NULL);
    count = 0;
    pthread_mutex_unlock(&pool);
}

static int run_alone(poetc_kernel kernel, const poetc_call *call)
{
    poetc_call alone = *call;

    alone.share.parts = 1;
    return kernel(&alone);
}

int poetc_parallel(poetc_kernel kernel, const poetc_call *call, int32_t workspace_floats)
{
    int result, i;

    if (workspace_floats > POETC_THREADS_FLOATS || pthread_mutex_trylock(&pool))
        return run_alone(kernel, call);
    if (!started)
        start();
    if (count == 0) {
        pthread_mutex_unlock(&pool);
        return run_alone(kernel, call);
    }
    job.kernel = kernel;
    job.call = *call;
    start_job();
    result = run_share(0, buffers[0]);
    for (i = 0; __atomic_load_n(&pending, __ATOMIC_ACQUIRE) > 0; i++) {
        if (i < SPINS)
            pause_();
        else
            sched_yield(); /* fewer processors than threads */
    }
    for (i = 0; i < count && result == 0; i++)
        result = results[i];
    pthread_mutex_unlock(&pool);
    return result;
}

#else
typedef int poetc_without_threads; /* a C file must have something in it */
#endif
