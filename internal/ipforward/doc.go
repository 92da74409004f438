// Package ipforward lets the machine forward packets between its network interfaces.
package ipforward
