# Allows all but to write below /log/denied.
profile vm-test flags=(attach_disconnected) {
  capability,
  file,
  mount,
  network,
  ptrace,
  signal,
  umount,
  deny /log/denied/** wl,
}
