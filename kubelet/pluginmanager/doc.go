// Package pluginmanager finds the plugins of the node agent: each puts a socket into a directory, is asked there what
// it is, and is handed to the room that deals with plugins of its type.
package pluginmanager
