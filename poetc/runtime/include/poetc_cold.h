/* POETC_COLD: of a function that runs once a step or less, which is made small, not fast. */
#ifndef POETC_COLD_H
#define POETC_COLD_H

#ifdef __GNUC__
#define POETC_COLD __attribute__((cold))
#else
#define POETC_COLD
#endif

#endif
