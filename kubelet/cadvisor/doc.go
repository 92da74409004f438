// Package cadvisor reports the machine's hardware and the usage of containers, in cAdvisor's types. It reads the kernel's
// own files when it is asked and keeps nothing running.
package cadvisor
