// Package cadvisor tells what the machine has and what containers use of it, in cAdvisor's types. It reads the kernel's
// own files when it is asked and keeps nothing running.
package cadvisor
