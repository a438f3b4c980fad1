/* Several processors in a training program; included once, after model.h. */
#ifndef POETC_USE_PROCESSORS_H
#define POETC_USE_PROCESSORS_H

#include "poetc_session.h"
#ifdef POETC_QUEUES
#include "poetc_processors.h"
#endif

/* The steps of training run on all processors that the schedule has. */
static int use_processors(poetc_session *session)
{
#ifdef POETC_QUEUES
    static poetc_processors processors;

    session->run = poetc_processors_run;
    session->run_context = &processors;
    return poetc_processors_begin(&processors, &session->runtime, POETC_MODEL_QUEUES);
#else
    (void)session;
    return POETC_OK;
#endif
}

#endif
