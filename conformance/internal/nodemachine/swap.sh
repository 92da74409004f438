#!/bin/sh
# Gives this machine 2 GiB of swap, for the specs about swap.
set -eu
(umask 077 && fallocate -l 2G /var/swap)
mkswap -q /var/swap
swapon /var/swap
