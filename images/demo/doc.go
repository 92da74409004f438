// Command demo is a web page that counts its visits on a volume, to show that a pod's data outlives the pod.
//
//	PORT      the TCP port it listens on (default 8080; flag -port)
//	DATA_DIR  the directory that holds the file "count" (default /data; flag -data-dir)
//
// "/" counts a visit and shows a page, "/count" answers the number alone without counting, "/healthz" says
// whether the volume can be read and written.
package main
