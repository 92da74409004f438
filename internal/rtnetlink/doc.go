// Package rtnetlink reports changes of the machine's addresses, routes and links as the kernel notifies of them.
package rtnetlink
