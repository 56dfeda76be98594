/* What main.c uses of the board. */

#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

void print(const char *text);
void print_number(uint32_t number);
void leave(void);
void clock_start(void);
uint32_t clock_ticks(void);
uint32_t clock_since(uint32_t start);
void stack_paint(void);
uint32_t stack_used(void);

#endif
